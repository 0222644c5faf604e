package io.tidemark.planning;

import java.io.Serializable;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction2;

/** What a task makes of the rows of its partition. */
abstract class RowsOfTask extends AbstractFunction2<TaskContext, Iterator<InternalRow>, InternalRow[]>
    implements Serializable {}
